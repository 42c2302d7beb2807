"""Membership of documents: which texts was a language model trained on?"""
