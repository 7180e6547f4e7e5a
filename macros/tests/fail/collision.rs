use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

// The hashes of these two names agree in 32 bits.
#[grain_methods]
impl Room {
    async fn join_draft_count_vote(&self) {}

    async fn count_story_name_door(&self) {}
}

fn main() {}
