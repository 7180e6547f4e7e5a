use siloring::prelude::*;

#[message(type = "chat.line")]
struct LineV1 {
    text: String,
}

#[message(type = "chat.line", version = 2, was(LineV1))]
struct OnlyUp {
    text: String,
    loud: bool,
}

impl From<LineV1> for OnlyUp {
    fn from(old: LineV1) -> Self {
        Self { text: old.text, loud: false }
    }
}

#[message(type = "chat.post", version = 2, reads(LineV1))]
struct OfAnotherName {
    text: String,
}

impl From<LineV1> for OfAnotherName {
    fn from(old: LineV1) -> Self {
        Self { text: old.text }
    }
}

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    #[was(1, fn(name: String))]
    async fn not_raised(&self, name: String, loud: bool) {}

    #[method(version = 0)]
    async fn zero(&self) {}

    #[method(version = 2)]
    #[was(fn(name: String))]
    async fn no_number(&self, name: String) {}

    #[method(version = 2)]
    #[was(1, fn(String))]
    async fn no_name(&self, name: String) {}

    #[method(version = 2)]
    #[was(1, fn(count: usize))]
    async fn no_layout(&self, count: u64) {}

    #[method(version = 3)]
    #[was(1, fn())]
    #[was(1, fn())]
    async fn twice(&self, name: String) {}

    #[on_event]
    #[was(1, fn(line: LineV1))]
    async fn on_line(&self, line: LineV1) {}
}

#[derive(Grain, Default)]
#[grain(type = "chat.hall")]
struct Hall;

#[grain_methods]
impl Hall {
    #[method(version = 2)]
    #[was(1, fn(line: LineV1) -> LineV1)]
    async fn no_way(&self, line: String) -> String {
        line
    }

    #[on_event]
    #[method(version = 2)]
    async fn on_line(&self, line: LineV1) {}
}

fn main() {}
