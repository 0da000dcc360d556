// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"testing"
)

// TestServiceAnnotations checks which Namespaces a value selects, and which values are errors.
func TestServiceAnnotations(t *testing.T) {
	allowed, other := map[string]string{"annotations": "allowed", "team": "a"}, map[string]string{"team": "b"}
	for value, want := range map[string]string{
		"": "[true true true]", "all": "[true true true]", "none": "[false false false]", "annotations=allowed": "[true false false]",
		"team in (a,b),!annotations": "[false true false]", "a b": "error", "=": "error",
	} {
		c := New()
		c.Slipstream.ServiceAnnotations = value
		got := "error"
		if selects, err := c.Annotated(); err == nil {
			if selects == nil {
				selects = func(map[string]string) bool { return true }
			}
			got = fmt.Sprint([]bool{selects(allowed), selects(other), selects(nil)})
		}
		if got != want || (len(c.validateOwn()) == 0) == (want == "error") {
			t.Errorf("%q: %s, want %s; errors %v", value, got, want, c.validateOwn())
		}
	}
	c := New()
	c.Slipstream.NamespaceSlots, c.Slipstream.NamespaceElements = -1, -1
	if errs := c.validateOwn(); len(errs) != 2 {
		t.Errorf("%v", errs)
	}
}
