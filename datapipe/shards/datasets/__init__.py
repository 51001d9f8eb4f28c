"""Cleaned documents and packed rows in the formats of other tools: the Hugging Face hub's folders, and MosaicML's MDS."""
