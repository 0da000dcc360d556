// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"math/rand/v2"
	"testing"
)

// TestChiSquared makes sure that RunSpread could fail: an even choice passes, and
// one backend that gets nothing, half or twice as much is found out.
func TestChiSquared(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   int
		weight float64 // of the first backend, where the others have 1
		passes bool
	}{
		{"even", 3, 1, true}, {"even", 8, 1, true}, {"even", 20, 1, true},
		{"never", 3, 0, false}, {"never", 8, 0, false}, {"never", 20, 0, false},
		{"twice", 3, 2, false}, {"twice", 8, 2, false}, {"twice", 20, 2, false},
		{"half", 3, 0.5, false}, {"half", 8, 0.5, false},
	} {
		r := rand.New(rand.NewPCG(uint64(c.size), 1))
		hits := make([]int, c.size)
		for range c.size * perBackend {
			x := r.Float64() * (float64(c.size-1) + c.weight)
			if x < c.weight {
				hits[0]++
			} else {
				hits[1+int(x-c.weight)]++
			}
		}
		critical := spreadCritical[c.size-1]
		if chi := chiSquared(hits); (chi <= critical) != c.passes {
			t.Errorf("%d backends, %s: chi-squared %.1f, critical %.1f, hits %v", c.size, c.name, chi, critical, hits)
		}
	}
}
