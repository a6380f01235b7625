"""Nothing: snapshots on Pathways are not supported."""

__all__: list[str] = []
