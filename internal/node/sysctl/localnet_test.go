// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRouteLocalnet(t *testing.T) {
	for _, was := range []int{0, 1} {
		root := tree(t, map[string]int{routeLocalnet: was})
		if err := enableRouteLocalnet(t.Context(), root); err != nil {
			t.Error(err)
		}
		if got, _ := os.ReadFile(filepath.Join(root, routeLocalnet)); strings.TrimSpace(string(got)) != "1" {
			t.Errorf("was %d, is %q, want 1", was, got)
		}
	}
	if err := enableRouteLocalnet(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "route_localnet") {
		t.Errorf("no such parameter: %v", err)
	}
}
