// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                          "0 µs",
		85 * time.Microsecond:      "85 µs",
		999_600:                    "1.0 ms",
		12_345 * time.Microsecond:  "12.3 ms",
		99_960 * time.Microsecond:  "100 ms",
		999_700 * time.Microsecond: "1.00 s",
		2500 * time.Millisecond:    "2.50 s",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		n, most, columns int
		want             string
	}{
		{0, 10, 4, ""},
		{10, 10, 4, "████"},
		{5, 10, 4, "██"},
		{9, 16, 2, "█▏"},
		{1, 1000, 4, "▏"}, // can be seen
		{20, 10, 4, "████"},
		{1, 0, 4, ""},
	} {
		if got := bar(c.n, c.most, c.columns); got != c.want {
			t.Errorf("bar(%d, %d, %d) = %q, want %q", c.n, c.most, c.columns, got, c.want)
		}
	}
}

func TestStrip(t *testing.T) {
	if got, want := strip([]int{0, 1, 4, 8, 9, 0}, 8), "·▁▄██·"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := strip([]int{1, 0}, 100), "▁·"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUsual(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    int
	}{
		{nil, 1},
		{[]int{0, 0}, 1},
		{[]int{0, 3}, 3},
		{[]int{2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 50}, 2},
	} {
		if got := usual(c.numbers); got != c.want {
			t.Errorf("usual(%v) = %d, want %d", c.numbers, got, c.want)
		}
	}
}

func TestWrap(t *testing.T) {
	got := wrap("one two  three four-is-too-long five", 9)
	if want := []string{"one two", "three", "four-is-too-long", "five"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLogbook(t *testing.T) {
	l := newLogbook()
	for _, piece := range []string{
		"I0101 10:00:00.000000 7 run.go:1] \"Starting\" node=\"n\"\nI0101 10:00:00.100000 7 proxy.go:1] \"Programmed the ker",
		"nel\" kind=\"full\" frontends=3 pools=2 elements=40 took=\"1.25ms\"\n",
		"I0101 10:00:01.000000 7 proxy.go:1] \"Programmed the kernel\" kind=\"change\" frontends=0 pools=1 elements=2 took=\"85µs\"\n",
		"E0101 10:00:02.000000 7 run.go:1] \"web.yaml: is empty\"\nslipstream: last words\n",
	} {
		if _, err := l.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	full, ok := l.wait(t.Context(), 0)
	if !ok || full.kind != "full" || full.elements != 40 || full.took != 1250*time.Microsecond {
		t.Errorf("first update: %+v, %v", full, ok)
	}
	change, ok := l.wait(t.Context(), 1)
	if !ok || change.kind != "change" || change.elements != 2 || change.took != 85*time.Microsecond {
		t.Errorf("second update: %+v, %v", change, ok)
	}
	if l.updates() != 2 {
		t.Errorf("%d updates, want 2", l.updates())
	}
	if got := l.trouble(); len(got) != 2 || got[1] != "slipstream: last words" {
		t.Errorf("trouble: %q", got)
	}
}
