"""Stores of objects that opendal knows."""

# What the extra `stores` names: compactord itself is in no package index.
INSTALL_STORES = "pip install 'botocore>=1.35,<2' 'fsspec>=2024.12,<2027' 'opendal>=0.47.12,<0.48'"
