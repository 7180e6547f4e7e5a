//! Whole clusters on virtual time.
mod smoke;
