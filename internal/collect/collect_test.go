// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"maps"
	"slices"
	"strconv"
	"testing"
)

func TestFrom(t *testing.T) {
	if got := From([]int{2, 1, 2}, strconv.Itoa); !slices.Equal(got, []string{"2", "1", "2"}) {
		t.Errorf("got %q", got)
	}
	if got := From(nil, strconv.Itoa); got != nil {
		t.Errorf("got %q of nothing, want nil", got)
	}
}

func TestSet(t *testing.T) {
	if got := Set([]int{2, 1, 2}); !maps.Equal(got, map[int]bool{1: true, 2: true}) {
		t.Errorf("got %v", got)
	}
}
