//! Reference engine on candle: the example of how an engine embeds Kvasir.
