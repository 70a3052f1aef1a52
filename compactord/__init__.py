"""compactord: a dedicated compaction service for Apache Paimon tables."""

__version__ = "0.1.0"
