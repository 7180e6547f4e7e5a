//! Layout hashes: what changes them, and what must not.

use siloring::prelude::*;
use siloring::schema::{Layout, Message};

#[message(type = "test.base")]
struct Base {
    a: u32,
    b: u64,
}

#[message(type = "test.renamed_type")]
struct Renamed {
    a: u32,
    b: u64,
}

#[message(type = "test.renamed_field")]
struct RenamedField {
    a: u32,
    c: u64,
}

#[message(type = "test.swapped")]
struct Swapped {
    b: u64,
    a: u32,
}

#[message(type = "test.widened")]
struct Widened {
    a: u64,
    b: u64,
}

#[message(type = "test.outer")]
struct Outer {
    inner: Base,
}

#[message(type = "test.outer_swapped")]
struct OuterSwapped {
    inner: Swapped,
}

#[message(type = "test.choice")]
enum Choice {
    Yes { a: u32 },
    No,
}

#[message(type = "test.choice_swapped")]
enum ChoiceSwapped {
    No,
    Yes { a: u32 },
}

#[test]
fn the_rust_name_of_a_type_is_no_part_of_its_layout() {
    assert_eq!(Base::LAYOUT, Renamed::LAYOUT);
    assert_ne!(Base::SCHEMA, Renamed::SCHEMA, "the stable name is part of the schema");
}

#[test]
fn names_types_and_order_of_fields_are_part_of_the_layout() {
    assert_ne!(Base::LAYOUT, RenamedField::LAYOUT);
    assert_ne!(Base::LAYOUT, Swapped::LAYOUT);
    assert_ne!(Base::LAYOUT, Widened::LAYOUT);
    assert_ne!(Choice::LAYOUT, ChoiceSwapped::LAYOUT);
}

#[test]
fn a_change_deep_inside_changes_the_outer_layout() {
    assert_ne!(Outer::LAYOUT, OuterSwapped::LAYOUT);
    assert_ne!(Outer::LAYOUT, Base::LAYOUT, "nesting counts");
}
