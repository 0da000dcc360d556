// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                          "0s",
		85 * time.Microsecond:      "85µs",
		999_600:                    "1ms",
		12_345 * time.Microsecond:  "12.3ms",
		99_960 * time.Microsecond:  "100ms",
		999_700 * time.Microsecond: "1s",
		2512 * time.Millisecond:    "2.51s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestDemoReadsTheLog(t *testing.T) {
	l := strings.Join([]string{
		"I0101 10:00:00.000000 7 run.go:1] \"Starting\" node=\"n\"\nI0101 10:00:00.100000 7 proxy.go:1] \"Programmed the ker",
		"nel\" kind=\"full\" frontends=3 pools=2 elements=40 took=\"1.25ms\"\n",
		"I0101 10:00:01.000000 7 proxy.go:1] \"Programmed the kernel\" kind=\"change\" frontends=0 pools=1 elements=2 took=\"85µs\"\n",
		"E0101 10:00:02.000000 7 run.go:1] \"web.yaml: is empty\"\nslipstream: last words\n",
	}, "")
	all := updatesIn(l)
	if len(all) != 2 || all[0].took != 1250*time.Microsecond || all[1].took != 85*time.Microsecond {
		t.Errorf("updates: %+v", all)
	}
	if got := warningsIn(l); len(got) != 2 || got[1] != "slipstream: last words" {
		t.Errorf("warnings: %q", got)
	}
	if got := all[1].done.Sub(all[0].done); got != 900*time.Millisecond {
		t.Errorf("the second update is %v after the first", got)
	}
	if cut := updatesIn(l[:strings.Index(l, "1.25m")+5]); len(cut) != 0 { // half a line
		t.Errorf("updates in half a line: %+v", cut)
	}
}

// A claim that does not hold fails the step that it belongs to, and no other.
func TestClaim(t *testing.T) {
	var out bytes.Buffer
	r := &report{ctx: t.Context(), out: &out}
	first, second := r.step("one"), r.step("two")
	r.claim(true, "holds")
	if second.failed || r.held != 1 || len(r.broken) != 0 {
		t.Errorf("a claim that holds: %+v", r)
	}
	r.claim(false, "%d of %d", 1, 2)
	if first.failed || !second.failed || r.held != 1 || len(r.broken) != 1 || r.broken[0] != "1 of 2" {
		t.Errorf("a claim that does not hold: %+v", r)
	}
}
