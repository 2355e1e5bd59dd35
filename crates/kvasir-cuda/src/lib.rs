//! The codec on a GPU.
