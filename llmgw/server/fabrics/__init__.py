"""The fabrics as their own managers and maps tell: asked of nodes, judged, remembered, and given to placement."""
