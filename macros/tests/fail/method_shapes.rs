#![allow(unused_variables, reason = "only the signatures matter here")]

use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    const LIMIT: u32 = 7;

    fn helper(&self) {}

    async fn without_state() {}

    async fn taking_itself(self) {}

    async fn generic<T>(&self, value: T) {}

    async unsafe fn risky(&self) {}

    async fn pattern(&self, (a, b): (u32, u32)) {}

    async fn two_contexts(&self, ctx: &Ctx, again: &Ctx) {}

    async fn error_unseen(&self) -> Result<u64> {}

    #[method]
    async fn no_id(&self) {}

    #[method()]
    async fn still_no_id(&self) {}

    #[method(name = "old")]
    async fn unknown_setting(&self) {}

    #[method(id = "")]
    async fn empty_id(&self) {}
}

fn main() {}
