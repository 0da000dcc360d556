// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSNMP(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snmp")
	text := "Ip: Forwarding DefaultTTL InReceives ForwDatagrams InDelivers\n" +
		"Ip: 1 64 100 42 58\n" +
		"Icmp: InMsgs InErrors\n" +
		"Icmp: 7 8\n" +
		"Ip6OutForwDatagrams             \t23\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		read func() (uint64, error)
		want uint64
	}{
		{"Ip", func() (uint64, error) { return snmp4(path, "Ip:", "ForwDatagrams") }, 42},
		{"Icmp", func() (uint64, error) { return snmp4(path, "Icmp:", "InErrors") }, 8},
		{"Ip6", func() (uint64, error) { return snmp6(path, "Ip6OutForwDatagrams") }, 23},
	} {
		if got, err := test.read(); err != nil || got != test.want {
			t.Errorf("%s: %d, %v, want %d", test.name, got, err, test.want)
		}
	}
	if _, err := snmp4(path, "Ip:", "NoSuchCounter"); err == nil {
		t.Error("no error for a missing counter")
	}
	if _, err := snmp6(path, "NoSuchCounter"); err == nil {
		t.Error("no error for a missing counter of IPv6")
	}
	if got, err := snmp6(path+"x", "Ip6OutForwDatagrams"); got != 0 || err != nil {
		t.Errorf("without IPv6: %d, %v", got, err)
	}
}

func TestShare(t *testing.T) {
	tests := []struct {
		before, after passage
		want          float64
	}{
		{passage{100, 50}, passage{200, 150}, 1},
		{passage{100, 50}, passage{200, 75}, 0.25},
		{passage{100, 50}, passage{100, 50}, 0},
	}
	for _, test := range tests {
		if got := test.before.share(test.after); got != test.want {
			t.Errorf("%v to %v: %v, want %v", test.before, test.after, got, test.want)
		}
	}
}
