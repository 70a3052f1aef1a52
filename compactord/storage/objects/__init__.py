"""Object stores through the library opendal: S3, GCS, Azure and OSS.

`s3`, `gcs`, `azure` and `oss` are the entries in the registry of stores. The libraries opendal and
botocore are imported when a store is opened, not before.
"""
