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

func TestEntry(t *testing.T) {
	all := map[string]*int{}
	*Entry(all, "a")++
	if *Entry(all, "a")++; *all["a"] != 2 || len(all) != 1 {
		t.Errorf("got %d in %v, want 2", *all["a"], all)
	}
}
