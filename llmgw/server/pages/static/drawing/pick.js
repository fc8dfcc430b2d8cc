// What lies under the pointer: a marker, a dot, a group's node, a switch, or a slow cable.

import { distanceTo } from "./curves.js";

const REACH_PX = 8;

/** The item at a point of the sheet, or null. */
export function pick(camera, fabric, moving, px, py) {
  for (const { box, cable } of moving.markers) {
    if (px >= box[0] && px <= box[2] && py >= box[1] && py <= box[3]) return cable;
  }
  const [x, y] = camera.toWorld(px, py);
  const { switch_width, switch_height, group_width, group_height } = fabric.sizes;
  const reach = REACH_PX / camera.scale;
  for (const each of fabric.switches) {
    if (Math.abs(x - each.x) <= switch_width / 2 && y >= each.y && y <= each.y + switch_height) return each;
  }
  const inGroups = (groups) => {
    for (const group of groups) {
      if (x < group.x || x > group.x + group_width || y < group.y - 5 || y > group.y + group_height) continue;
      return ofGroup(fabric, group, x, y, Math.min(reach, 5.5));
    }
    return null;
  };
  for (const each of fabric.switches) {
    const [left, top, right, bottom] = each.fan;
    if (x < left || x > right || y < top - 5 || y > bottom) continue;
    // From afar a fan is a block, and stands for its switch.
    if (group_height * camera.scale < 4) return each;
    const found = inGroups(each.groups);
    if (found !== null) return found;
  }
  const loose = inGroups(fabric.loose);
  if (loose !== null) return loose;
  return fabric.slow.find((cable) => distanceTo(cable.curve, x, y) < reach) ?? null;
}

function ofGroup(fabric, group, x, y, reach) {
  for (const adapter of group.adapters) {
    if (Math.hypot(adapter.x - x, adapter.y - y) <= reach) return adapter;
  }
  return fabric.find(`node ${group.owner}`) ?? group.adapters[0];
}
