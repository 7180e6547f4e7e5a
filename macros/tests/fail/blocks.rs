use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
pub struct Room;

#[grain_methods(type = "chat.room")]
impl Room {}

#[grain_methods]
impl Clone for Room {
    async fn clone(&self) {}
}

#[grain_methods]
impl<T> Wrapper<T> {}

#[grain_methods]
struct NotABlock;

struct Other;

#[grain_methods]
impl Other {
    pub async fn open(&self) {}

    async fn hidden(&self) {}

    #[method(id = "open")]
    pub async fn reopen(&self) {}
}

fn main() {}
