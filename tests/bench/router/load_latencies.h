/* The latencies that the bench's load keeps, and what it tells of them. */
#include "wire.h"

#define LATENCIES_MAX (1 << 24)

typedef struct {
    uint32_t *tenths_us;
    size_t count, room;
} Latencies;

static void add_latency(Latencies *all, uint64_t ns) {
    if (all->count == LATENCIES_MAX) return;
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 65536;
        all->tenths_us = or_die(realloc(all->tenths_us, all->room * sizeof *all->tenths_us));
    }
    all->tenths_us[all->count++] = ns / 100 > UINT32_MAX ? UINT32_MAX : ns / 100;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_latencies(const char *name, Latencies *all) {
    if (!all->count) return;
    qsort(all->tenths_us, all->count, sizeof *all->tenths_us, by_size);
    printf(",\"%s\":{\"count\":%zu,\"p50\":%.1f,\"p99\":%.1f,\"max\":%.1f}", name, all->count,
           all->tenths_us[(all->count - 1) / 2] / 10.0, all->tenths_us[(all->count - 1) * 99 / 100] / 10.0,
           all->tenths_us[all->count - 1] / 10.0);
}
