#[derive(
    :: siloring :: rkyv :: Archive,
    :: siloring :: rkyv :: Serialize,
    :: siloring :: rkyv :: Deserialize,
)]
# [rkyv (crate = :: siloring :: rkyv , attr (allow (missing_debug_implementations , reason = "rkyv derives none")) ,)]
struct Line {
    from: String,
    text: String,
}
#[automatically_derived]
impl ::siloring::schema::Layout for Line {
    const LAYOUT: u64 = {
        let mut hash = ::core::mem::size_of::<::siloring::rkyv::Archived<Line>>() as u64;
        hash = ::siloring::schema::mix(
            hash,
            ::core::mem::align_of::<::siloring::rkyv::Archived<Line>>() as u64,
        );
        hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"from"));
        hash = ::siloring::schema::mix(hash, <String as ::siloring::schema::Layout>::LAYOUT);
        hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"text"));
        hash = ::siloring::schema::mix(hash, <String as ::siloring::schema::Layout>::LAYOUT);
        hash
    };
}
#[automatically_derived]
impl ::siloring::schema::Message for Line {
    const TYPE: &'static str = "chat.line";
    const VERSION: u16 = 2u16;
    const OLDER: &'static [::siloring::versions::Older] = {
        const OLDER: &[::siloring::versions::Older] =
            &[::siloring::versions::Older::both::<LineV1, Line>(
                <LineV1 as ::siloring::schema::Message>::SCHEMA,
            )];
        ::core::assert!(
            ::siloring::versions::are_distinct(OLDER),
            "two of the older versions have one number"
        );
        OLDER
    };
}
#[automatically_derived]
impl ::siloring::versions::FromVersion<Self> for Line {
    fn from_version(
        same: Self,
    ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
        ::core::result::Result::Ok(same)
    }
}
#[automatically_derived]
impl ::siloring::versions::FromVersion<LineV1> for Line {
    fn from_version(
        other: LineV1,
    ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
        ::siloring::versions::converted(other)
    }
}
#[automatically_derived]
impl ::siloring::versions::FromVersion<Line> for LineV1 {
    fn from_version(
        other: Line,
    ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
        ::siloring::versions::converted(other)
    }
}
const _: () = ::core::assert!(
    ::siloring::versions::is_older::<LineV1, Line>(),
    "`LineV1` is no older version of `Line`: they have one type name, and `Line` the higher version"
);
#[automatically_derived]
impl ::siloring::grain::GrainType for Room {
    const TYPE: &'static str = "chat.room";
    const PLACEMENT: ::siloring::grain::Placement = ::siloring::grain::Placement::Hash;
    const REENTRANT: bool = false;
    const IDLE_AFTER: ::core::option::Option<::core::time::Duration> = ::core::option::Option::None;
    type Key = ::std::string::String;
}
#[allow(
    clippy::unused_async,
    clippy::needless_pass_by_value,
    reason = "grain methods are async and take their arguments by value"
)]
impl Room {
    async fn on_activate(&mut self, ctx: &Ctx) -> Result<(), String> {
        Ok(())
    }
    #[doc = r" Adds a member."]
    pub async fn join(&mut self, name: String) {}
    #[doc = r" Posts a line."]
    pub async fn post(&self, ctx: &Ctx, line: &Archived<Line>) -> Result<u64, RoomError> {
        Ok(7)
    }
    async fn on_line(&mut self, ctx: &Ctx, line: &Archived<Line>) -> Result<(), String> {
        Ok(())
    }
}
#[doc = "Calls to the methods of [`Room`]."]
pub trait RoomRef {
    #[doc = r" Adds a member."]
    fn join(&self, name: String) -> ::siloring::call::Call<()>;
    #[doc = r" Posts a line."]
    fn post(&self, line: Line) -> ::siloring::call::Call<u64, RoomError>;
}
impl Room {
    #[doc = "Subscribes a grain with its `on_line`."]
    const ON_LINE: ::siloring::grain::EventMethod<Room, Line> =
        ::siloring::grain::EventMethod::<Room, Line>::new(::siloring::MethodId::of("on_line"));
}
const _: () = {
    #[derive(
        :: siloring :: rkyv :: Archive,
        :: siloring :: rkyv :: Serialize,
        :: siloring :: rkyv :: Deserialize,
    )]
    # [rkyv (crate = :: siloring :: rkyv , attr (allow (missing_debug_implementations , reason = "rkyv derives none")) ,)]
    struct __JoinArguments {
        name: String,
    }
    #[automatically_derived]
    impl ::siloring::schema::Layout for __JoinArguments {
        const LAYOUT: u64 = {
            let mut hash =
                ::core::mem::size_of::<::siloring::rkyv::Archived<__JoinArguments>>() as u64;
            hash = ::siloring::schema::mix(
                hash,
                ::core::mem::align_of::<::siloring::rkyv::Archived<__JoinArguments>>() as u64,
            );
            hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"name"));
            hash = ::siloring::schema::mix(hash, <String as ::siloring::schema::Layout>::LAYOUT);
            hash
        };
    }
    #[derive(
        :: siloring :: rkyv :: Archive,
        :: siloring :: rkyv :: Serialize,
        :: siloring :: rkyv :: Deserialize,
    )]
    # [rkyv (crate = :: siloring :: rkyv , attr (allow (missing_debug_implementations , reason = "rkyv derives none")) ,)]
    struct __PostArguments {
        line: Line,
    }
    #[automatically_derived]
    impl ::siloring::schema::Layout for __PostArguments {
        const LAYOUT: u64 = {
            let mut hash =
                ::core::mem::size_of::<::siloring::rkyv::Archived<__PostArguments>>() as u64;
            hash = ::siloring::schema::mix(
                hash,
                ::core::mem::align_of::<::siloring::rkyv::Archived<__PostArguments>>() as u64,
            );
            hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"line"));
            hash = ::siloring::schema::mix(hash, <Line as ::siloring::schema::Layout>::LAYOUT);
            hash
        };
    }
    #[derive(
        :: siloring :: rkyv :: Archive,
        :: siloring :: rkyv :: Serialize,
        :: siloring :: rkyv :: Deserialize,
    )]
    # [rkyv (crate = :: siloring :: rkyv , attr (allow (missing_debug_implementations , reason = "rkyv derives none")) ,)]
    struct __PostArgumentsV1 {
        line: LineV1,
        loud: bool,
    }
    #[automatically_derived]
    impl ::siloring::schema::Layout for __PostArgumentsV1 {
        const LAYOUT: u64 = {
            let mut hash =
                ::core::mem::size_of::<::siloring::rkyv::Archived<__PostArgumentsV1>>() as u64;
            hash = ::siloring::schema::mix(
                hash,
                ::core::mem::align_of::<::siloring::rkyv::Archived<__PostArgumentsV1>>() as u64,
            );
            hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"line"));
            hash = ::siloring::schema::mix(hash, <LineV1 as ::siloring::schema::Layout>::LAYOUT);
            hash = ::siloring::schema::mix(hash, ::siloring::hash::stable_u64(b"loud"));
            hash = ::siloring::schema::mix(hash, <bool as ::siloring::schema::Layout>::LAYOUT);
            hash
        };
    }
    impl ::siloring::versions::FromVersion<__PostArgumentsV1> for __PostArguments {
        fn from_version(
            other: __PostArgumentsV1,
        ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
            let __PostArgumentsV1 { line, .. } = other;
            ::core::result::Result::Ok(Self {
                line: <Line as ::siloring::versions::FromVersion<LineV1>>::from_version(line)?,
            })
        }
    }
    impl ::siloring::versions::FromVersion<__PostArguments> for __PostArgumentsV1 {
        fn from_version(
            other: __PostArguments,
        ) -> ::core::result::Result<Self, ::siloring::versions::Unconvertible> {
            let __PostArguments { line, .. } = other;
            ::core::result::Result::Ok(Self {
                line: <LineV1 as ::siloring::versions::FromVersion<Line>>::from_version(line)?,
                loud: ::core::default::Default::default(),
            })
        }
    }
    const __POST_WAS: ::siloring::grain::Signatures = {
        const ARGUMENTS: &[::siloring::versions::Older] =
            &[::siloring::versions::Older::both::<__PostArgumentsV1, __PostArguments>(
                ::siloring::grain::arguments_schema::<Room>(
                    __POST_ID,
                    1u16,
                    <__PostArgumentsV1 as ::siloring::schema::Layout>::LAYOUT,
                ),
            )];
        const REPLIES: &[::siloring::versions::Older] =
            &[::siloring::versions::Older::both::<
                Result<u32, RoomError>,
                ::core::result::Result<u64, RoomError>,
            >(::siloring::grain::reply_schema::<Room>(
                __POST_ID,
                1u16,
                <Result<u32, RoomError> as ::siloring::schema::Layout>::LAYOUT,
            ))];
        ::siloring::grain::Signatures { arguments: ARGUMENTS, replies: REPLIES }
    };
    const __JOIN_ID: ::siloring::MethodId = ::siloring::MethodId::of("join");
    const __JOIN_SPEC: ::siloring::grain::MethodSpec = ::siloring::grain::MethodSpec::of::<Room>(
        "join",
        __JOIN_ID,
        <__JoinArguments as ::siloring::schema::Layout>::LAYOUT,
        <() as ::siloring::schema::Layout>::LAYOUT,
        ::siloring::grain::Access::Exclusive,
    );
    const __POST_ID: ::siloring::MethodId = ::siloring::MethodId::of("say");
    const __POST_SPEC: ::siloring::grain::MethodSpec = ::siloring::grain::MethodSpec::of::<Room>(
        "post",
        __POST_ID,
        <__PostArguments as ::siloring::schema::Layout>::LAYOUT,
        <::core::result::Result<u64, RoomError> as ::siloring::schema::Layout>::LAYOUT,
        ::siloring::grain::Access::Shared,
    )
    .version(2u16)
    .was(__POST_WAS);
    const __ON_LINE_SPEC: ::siloring::grain::MethodSpec =
        <Room>::ON_LINE.spec("on_line", ::siloring::grain::Access::Exclusive);
    impl ::siloring::grain::Grain for Room {
        const METHODS: &'static [::siloring::grain::MethodSpec] =
            &[__JOIN_SPEC, __POST_SPEC, __ON_LINE_SPEC];
        fn dispatch(
            turn: ::siloring::turn::Turn<Self>,
        ) -> impl ::core::future::Future<Output = ::siloring::turn::TurnOutput> + 'static {
            async move {
                match turn.method() {
                    ::siloring::grain::ACTIVATE => {
                        let mut state = turn.exclusive();
                        let outcome: ::core::result::Result<(), ::std::string::String> =
                            <Room>::on_activate(&mut state, turn.ctx()).await;
                        turn.activated(outcome)
                    }
                    ::siloring::grain::DEACTIVATE => turn.done(),
                    __JOIN_ID => {
                        let arguments = turn.arguments::<__JoinArguments>()?;
                        let mut state = turn.exclusive();
                        let reply: () =
                            <Room>::join(&mut state, turn.owned::<String>(&arguments.name)?).await;
                        turn.reply(&reply)
                    }
                    __POST_ID => {
                        let arguments = turn.arguments::<__PostArguments>()?;
                        let state = turn.shared();
                        let reply: ::core::result::Result<u64, RoomError> =
                            <Room>::post(&state, turn.ctx(), &arguments.line).await;
                        turn.reply(&reply)
                    }
                    id if id == __ON_LINE_SPEC.id => {
                        let event = turn.arguments::<Line>()?;
                        let mut state = turn.exclusive();
                        let outcome: Result<(), String> =
                            <Room>::on_line(&mut state, turn.ctx(), event).await;
                        turn.handled(outcome)
                    }
                    _ => turn.unknown_method(),
                }
            }
        }
    }
    const _: () = ::core::assert!(
        ::siloring::grain::ids_are_distinct(<Room as ::siloring::grain::Grain>::METHODS),
        "two methods of `Room` hash to one id: give one of them another by `#[method(id = \"…\")]`"
    );
    impl RoomRef for ::siloring::GrainRef<Room> {
        fn join(&self, name: String) -> ::siloring::call::Call<()> {
            ::siloring::GrainRef::call(self, &__JOIN_SPEC, &__JoinArguments { name })
        }
        fn post(&self, line: Line) -> ::siloring::call::Call<u64, RoomError> {
            ::siloring::GrainRef::call_fallible(self, &__POST_SPEC, &__PostArguments { line })
        }
    }
};
