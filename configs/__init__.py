"""Configs: each file is a page of a paper."""
