use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    async fn where_is(&self) -> std::net::Ipv4Addr {
        std::net::Ipv4Addr::LOCALHOST
    }
}

fn main() {}
