-- Whether a dead message fits a filter; what is not asked for is NULL. ?4 is when a decision began: what
-- has died since is not meant, so that what dies again is not decided about again. Ages count from then.
((?4 IS NULL OR dead.died_at <= ?4)
 AND (?7 IS NULL OR dead.key = ?7)
 AND (?8 IS NULL OR dead.topic GLOB ?8)
 AND (?9 IS NULL OR dead.error_kind = ?9)
 AND (?10 IS NULL OR dead.died_at <= ifnull(?4, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)) - ?10)
 AND (?11 IS NULL OR dead.died_at >= ifnull(?4, CAST(round(unixepoch('subsec') * 1000) AS INTEGER)) - ?11))
