// SPDX-License-Identifier: Apache-2.0

package logonce

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"
)

// TestErrors checks that an error that persists is logged once, and again after a success or
// another error.
func TestErrors(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	var e Errors
	for _, err := range []error{a, a, errors.New("a"), b, b, a, nil, a, nil, nil} {
		e.Log(log, err, "failed")
	}
	var got strings.Builder
	for _, entry := range log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		got.WriteString(entry.Err.Error())
	}
	if got.String() != "abaa" {
		t.Errorf("logged %s", &got)
	}
}
