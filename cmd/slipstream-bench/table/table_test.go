// SPDX-License-Identifier: Apache-2.0

package table

import (
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	tests := []struct{ got, want string }{
		{Duration(0.5), "0.50 µs"},
		{Duration(12.34), "12.3 µs"},
		{Duration(999.4), "999 µs"},
		{Duration(999.6), "1.00 ms"},
		{Duration(99_960), "100 ms"},
		{Duration(2_500_000), "2.50 s"},
		{Duration(1_234_000_000), "1,234 s"},
		{Size(999), "999 B"},
		{Size(1_500), "1.50 kB"},
		{Size(80_000_000), "80.0 MB"},
		{Size(1_220_000_000), "1.22 GB"},
		{Ratio(2, 3), "1.5"},
		{Ratio(1, 9.96), "10"},
		{Ratio(1, 99.4), "99"},
		{Ratio(1, 996), "1,000"},
		{Ratio(2, 82_001), "41,000"},
		{Ratio(0, 1), ""},
		{Ratio(1, 0), ""},
		{Thousands(0), "0"},
		{Thousands(999), "999"},
		{Thousands(1000), "1,000"},
		{Thousands(1234567), "1,234,567"},
	}
	for _, test := range tests {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

func TestTableAligns(t *testing.T) {
	var tab Table
	tab.Row("", "one", "another")
	tab.Row("what", "12 µs")
	tab.Row()
	tab.Row("what else", "1", "2")
	want := "" +
		"             one  another\n" +
		"what       12 µs\n" +
		"\n" +
		"what else      1        2\n"
	var got strings.Builder
	if err := tab.Write(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}
