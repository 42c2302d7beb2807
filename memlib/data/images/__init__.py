"""Images: their sources, decoding, storage, crops, captions and annotations."""
