// SPDX-License-Identifier: Apache-2.0

package see

import (
	"testing"
	"time"
)

// A walk is enough for questions that allow its age.
func TestRecent(t *testing.T) {
	var walk traffic
	if walk.recent(Recent) {
		t.Error("there was no walk")
	}
	walk.walked = time.Now()
	walk.sampled = walk.walked
	if !walk.recent(Recent) {
		t.Error("rates cannot be measured yet")
	}
	walk.sampled = walk.sampled.Add(-rateAfter)
	if walk.recent(Recent) {
		t.Error("another walk measures rates")
	}
	walk.rated = true
	if !walk.recent(Recent) || walk.recent(0) {
		t.Error("a new walk is for questions that allow its age, and only for these")
	}
	walk.walked = walk.walked.Add(-Recent - time.Second)
	if walk.recent(Recent) {
		t.Error("the walk is too old")
	}
}
