// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"strings"
	"testing"
)

func TestParseStream(t *testing.T) {
	const good = `{"start": {}, "intervals": [
		{"streams": [{"bits_per_second": 1}], "sum": {"bits_per_second": 3e9}},
		{"sum": {"bits_per_second": 5e9}}, {"sum": {"bits_per_second": 4e9}}],
		"end": {"sum_sent": {"bits_per_second": 4.1e9}, "sum_received": {"bits_per_second": 4e9}}}`
	tests := []struct {
		name, report string
		end          error
		rate         float64
		err          string
	}{
		{"good", good, nil, 4e9, ""},
		{"failed", `{"error": "unable to connect to server: Connection refused"}`, errors.New("exit status 1"), 0, "unable to connect"},
		{"failed without a word", "", errors.New("exit status 1"), 0, "exit status 1"},
		{"no report", "hello", nil, 0, "report"},
		{"nothing came", `{"intervals": [{"sum": {"bits_per_second": 1}}], "end": {"sum_received": {"bits_per_second": 0}}}`, nil, 0, "nothing was received"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseStream([]byte(test.report), test.end)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("error %v, want %q in it", err, test.err)
				}
				return
			}
			if err != nil || got != test.rate {
				t.Errorf("%v, %v, want %v", got, err, test.rate)
			}
		})
	}
}

// The message of an iperf3 that is between two streams is distinguished from other failures.
func TestNotReady(t *testing.T) {
	for said, want := range map[string]bool{
		"unable to connect to server: Connection refused":             true,
		"the server is busy running a test. try again later":          true,
		"unable to receive control message: Connection reset by peer": false,
		"control socket has closed unexpectedly":                      false,
	} {
		_, err := parseStream([]byte(`{"error": "`+said+`"}`), errors.New("exit status 1"))
		if got := errors.Is(err, errNotReady); got != want {
			t.Errorf("%q: %v, want not ready: %t", said, err, want)
		}
	}
}
