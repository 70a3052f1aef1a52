"""HDFS, through the library hdfs-native, which only `store` imports.

`spec.HDFS` is the entry in the registry of stores.
"""
