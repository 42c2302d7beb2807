"""A drill of failures between machines: Prefect, S3 and Ray, whose nodes are network namespaces."""
