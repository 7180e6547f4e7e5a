#![allow(unused_variables, reason = "only the signatures matter here")]

use siloring::prelude::*;

#[derive(Grain, Default)]
#[grain(type = "chat.room")]
struct Room;

#[grain_methods]
impl Room {
    async fn borrowed(&self, name: &str) {}

    async fn machine_sized(&self) -> usize {
        0
    }

    async fn random_order(&self, ages: Option<std::collections::HashMap<String, u8>>) {}

    async fn shared(&self, list: std::sync::Arc<Vec<u8>>) {}

    async fn opaque(&self, value: impl Clone) {}

    async fn itself(&self) -> Self {}

    async fn lasting(&self, time: std::time::Duration) {}
}

fn main() {}
