//! Whole clusters on virtual time.
mod defects;
mod smoke;
