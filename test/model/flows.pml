// SPDX-License-Identifier: Apache-2.0

/* One UDP Service with two endpoints, and one sender that never stops. The model has the order of what Slipstream does
 * between an object and a conntrack entry: hear, program, clean. Between any two steps the API server changes the
 * Service, the proxy is killed, the kernel refuses a change, a clean-up fails, or another program restores an older
 * ruleset. In the end, when nothing is left to do, the sender's entry leads to an endpoint that serves, or there is none.
 *
 * Steps are those of proxy.program and proxy.follow (internal/proxy), desired.StaleFlows and conntrack.Cleaner.
 * Macros leave something out, or allow something more; model_test.go has the result that each has to have:
 *   NO_CLEANUP       flows of a deleted Service are not cleaned (kube-proxy before 1.38)
 *   NO_LOOK_BACK     a repair does not look for flows that the restored rules have made
 *   NO_FULL_CLEANUP  a start and a repair clean no flows
 *   KILL_ANYWHERE    the proxy is also killed between a commit, its own or another program's, and the clean-up
 *   RESTORE_ANYTIME  the other program also acts before the first write of a start
 */
#define A    1
#define B    2
#define NONE 4 /* an entry without translation */
#define GONE 8 /* there is no such Service */

byte api = 3;                   /* A, B, both, 0 (no endpoint serves) or GONE */
byte rules = GONE;              /* what new entries are made from */
byte saved = GONE;              /* an older content of rules that another program may restore */
bool foreign;                   /* the kernel has counted a commit of another program */
byte entry;                     /* the sender's conntrack entry: 0 (none), A, B or NONE */

bool running;
byte heard, reported;           /* what the proxy knows, and what it has tried to program last */
bool everything, lookedBack, wasUp; /* wasUp: has programmed since its start */
byte stopped; bool only, ended; /* due when the change is in effect */
byte keep;                      /* the endpoints of only */
byte qStopped, qKeep; bool qOnly, qEnded, queued; /* waits for the cleaner */

byte changes = 2, kills = 1, refusals = 1, failures = 1, restores = 3;

#define endpoints(x) ((x) & (A | B))
#define serves(x)    ((x) != GONE && endpoints(x) != 0)
#define due          (stopped != 0 || only || ended)
#ifdef KILL_ANYWHERE
#define mayKill true
#else
#define mayKill (!due && !queued && !foreign)
#endif

#ifdef RESTORE_ANYTIME
#define mayRestore true
#else
#define mayRestore (running && wasUp)
#endif

active proctype Server() {
	do
	:: changes > 0 -> atomic {
		changes--;
		if :: api = GONE :: api = 0 :: api = A :: api = B :: api = A | B fi
	}
	:: changes > 0 -> changes = 0; break
	:: changes == 0 -> break
	od
}

/* A packet of the sender. One that meets an entry changes nothing. */
active proctype Sender() {
end:	do
	:: atomic { entry == 0 && (rules & A) != 0 -> entry = A }
	:: atomic { entry == 0 && (rules & B) != 0 -> entry = B }
	:: atomic { entry == 0 && rules == GONE -> entry = NONE }
	od
}

/* Another program restores what it has saved. */
active proctype Other() {
	do
	:: atomic { restores > 0 && mayRestore -> restores--; if :: saved = rules :: rules = saved; foreign = true fi }
	:: restores == 0 -> break
	:: restores = 0; break
	od
}

active proctype Proxy() {
	do
	/* Start: list, then program everything. */
	:: !running -> atomic {
		running = true; heard = api; reported = GONE; everything = true; lookedBack = false; wasUp = false;
		stopped = 0; only = false; ended = false; queued = false; qStopped = 0; qOnly = false; qEnded = false
	}
	/* Hear the newest version. */
	:: atomic { running && heard != api -> heard = api }
	/* Notice a commit of another program. */
	:: atomic { running && !everything && foreign -> everything = true; lookedBack = false }
	/* Program. What becomes due is collected first. */
	:: atomic { running && (everything || heard != reported) ->
		if
		:: heard != GONE ->
			stopped = stopped | (endpoints(reported) & ~heard);
			if :: !serves(reported) && serves(heard) -> only = true; keep = endpoints(heard)
			:: else fi
		:: heard == GONE && reported != GONE ->
#ifndef NO_CLEANUP
			ended = true
#else
			skip
#endif
		:: else
		fi;
		if
		:: everything && !lookedBack ->
#ifdef NO_LOOK_BACK
			if :: !wasUp && rules != GONE && heard == GONE -> ended = true :: else fi;
#else
			if :: rules != GONE && heard == GONE -> ended = true :: else fi;
#endif
			lookedBack = true
		:: else
		fi;
		reported = heard;
		if
		:: refusals > 0 -> refusals--; everything = true
		::
			/* A change on top of other content than the proxy's leaves some of that. */
			if :: everything || !foreign -> rules = heard :: else fi;
			if :: everything -> foreign = false :: else fi;
			wasUp = true;
#ifndef NO_FULL_CLEANUP
			if :: everything && heard != GONE -> only = true; keep = endpoints(heard) :: else fi;
#endif
			if :: only -> keep = endpoints(heard) :: else fi;
			everything = false
		fi
	}
	/* Hand over to the cleaner what is due. */
	:: atomic { running && due && !everything ->
		qStopped = qStopped | stopped; qEnded = qEnded || ended;
		if :: only -> qOnly = true; qKeep = keep :: else fi;
		queued = true; stopped = 0; only = false; ended = false
	}
	/* The cleaner. Later work replaces what earlier work says about endpoints that serve again. */
	:: atomic { running && queued ->
		if
		:: failures > 0 -> failures--
		:: if
		   :: qEnded && (entry == A || entry == B) -> entry = 0
		   :: (entry & qStopped) != 0 -> entry = 0
		   :: qOnly && entry != 0 && (entry == NONE || (entry & qKeep) == 0) -> entry = 0
		   :: else
		   fi;
		   queued = false; qStopped = 0; qOnly = false; qEnded = false
		fi
	}
	/* kill -9 */
	:: atomic { running && kills > 0 && mayKill -> kills--; running = false }
	:: atomic { running && !everything && !due && !queued && heard == api && !foreign && reported == heard && changes == 0 && restores == 0 ->
		/* Nothing is left to do, and the sender has sent once more. */
		if
		:: api == GONE -> assert(entry != A && entry != B)
		:: endpoints(api) != 0 -> assert(entry != NONE && (entry == 0 || (entry & api) != 0))
		:: else -> assert(entry != A && entry != B)
		fi;
		break
	}
	od
}
