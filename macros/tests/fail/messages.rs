use siloring::prelude::*;

#[message]
struct Unnamed;

#[message(type = "chat line")]
struct BadName {
    text: String,
}

#[message(type = "chat.line", versoin = 2)]
struct UnknownSetting;

#[message(type = "chat.line", version = 0)]
struct Zero;

#[message(type = "chat.line")]
struct Fields {
    count: usize,
    text: &'static str,
    #[rkyv(with = Inline)]
    other: u64,
}

#[message(type = "chat.line")]
enum Variants {
    One(std::collections::BTreeMap<u8, u8>),
}

#[message(type = "chat.line")]
struct Generic<T>(T);

#[message(type = "chat.line")]
union Overlaid {
    a: u32,
    b: f32,
}

#[message(type = "chat.line")]
fn function() {}

fn main() {}
