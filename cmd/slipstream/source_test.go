// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
)

// TestNamespacesWatched: Namespaces are watched for a selector only, as the chart gives the right to it then only.
func TestNamespacesWatched(t *testing.T) {
	for text, want := range map[string]bool{"": false, "all": false, "none": false, "team in (a)": true} {
		c := &config.Config{Slipstream: config.SlipstreamConfiguration{ServiceAnnotations: text}}
		objects, _, err := newSource(c, "http://127.0.0.1:1", "n1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := objects.(*api.Source).Options.Namespaces; got != want {
			t.Errorf("serviceAnnotations %q: Namespaces are watched: %v", text, got)
		}
	}
}
