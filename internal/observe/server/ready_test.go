// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"testing"
)

// TestNotReadyBeforeSync asks for the health of a proxy that has not programmed anything yet, such as one that may
// not list Services. It is not ready, so that a rollout does not go on to the next node.
func TestNotReadyBeforeSync(t *testing.T) {
	r := start(t, Options{HealthzAddress: anyHealthz})
	if status, body, _ := r.get(anyHealthz, "/healthz"); status != http.StatusServiceUnavailable {
		t.Errorf("status %d: %s", status, body)
	}
}
