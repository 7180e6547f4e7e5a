use siloring::prelude::*;

#[derive(Grain, Default)]
struct Unnamed;

#[derive(Grain, Default)]
#[grain(type = "chat/room")]
struct NameWithSlash;

#[derive(Grain, Default)]
#[grain(type = "chat.room", placement = "nearest")]
struct UnknownPlacement;

#[derive(Grain, Default)]
#[grain(type = "chat.room", placment = "hash")]
struct UnknownSetting;

#[derive(Grain, Default)]
#[grain(type = "chat.room", idle_after_s = 0)]
struct Zeroes;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Generic<T>(T);

fn main() {}
