use siloring::prelude::*;

#[derive(Grain)]
#[grain(type = "chat.room")]
struct Room;

fn main() {}
