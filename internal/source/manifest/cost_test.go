// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestBrokenDocuments reads files of broken documents: one with four times as many needs about four times the
// memory, and not sixteen times.
func TestBrokenDocuments(t *testing.T) {
	needs := func(documents int) uint64 {
		file := bytes.Repeat([]byte("---\nmetadata: {name: broken\n"+strings.Repeat("\n", 400)), documents)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if n := len(Decode("broken.yaml", file).Errors); n != documents {
			t.Fatalf("%d errors of %d documents", n, documents)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, many := needs(250), needs(1000); many > 7*few {
		t.Errorf("%d bytes for 250 documents, %d for 1000", few, many)
	}
}

// BenchmarkJSONLines reads files of JSON lines, which a log of changes may be: the time for a line does not depend on
// the number of lines. It fails if it is far from that.
func BenchmarkJSONLines(b *testing.B) {
	file := func(lines int) []byte {
		var all bytes.Buffer
		for i := range lines {
			fmt.Fprintf(&all, "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"n%d\"},\"data\":{\"a\":%q}}\n", i, strings.Repeat("x", 1000))
		}
		return all.Bytes()
	}
	const few, many = 500, 8000
	files := map[int][]byte{few: file(few), many: file(many)}
	var ratios []float64
	for b.Loop() {
		var took [2]time.Duration
		for i, lines := range []int{few, many} {
			start := time.Now()
			for range many / lines {
				if n := len(Decode("lines.json", files[lines]).Ignored); n != lines {
					b.Fatalf("%d objects of %d lines", n, lines)
				}
			}
			took[i] = time.Since(start)
		}
		ratios = append(ratios, took[1].Seconds()/took[0].Seconds())
	}
	slices.Sort(ratios)
	ratio := ratios[len(ratios)/2]
	if b.ReportMetric(ratio, "ratio"); ratio > 3 {
		b.Errorf("a line of %d takes %.1f times as long as one of %d", many, ratio, few)
	}
}
