// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"k8s.io/apimachinery/pkg/types"
)

// TestWarningsOfNodeStay has one Service cause warning after warning: 'slipstream status' still has the Node's.
func TestWarningsOfNodeStay(t *testing.T) {
	w := &Warnings{Recorder: events.Log(context.Background())}
	w.Add(events.Damaged, "the table was deleted")
	for i := range 2 * keptWarnings {
		w.OnService(types.NamespacedName{Namespace: "tenant", Name: "web"}, events.InvalidService, fmt.Sprint("no such scheduler: ", i))
	}
	if !slices.ContainsFunc(w.Last(), func(w Warning) bool { return w.Reason == events.Damaged }) {
		t.Errorf("the warning is gone: %v", w.Last())
	}
}

// noted is an events.Recorder that keeps notes.
type noted []string

func (n *noted) Normal(_, note string)                            { *n = append(*n, note) }
func (n *noted) Warning(_, note string)                           { *n = append(*n, note) }
func (n *noted) OnService(_ types.NamespacedName, _, note string) { *n = append(*n, note) }

// TestNotesAreLines: notes with text of objects are one short line each, in the status and in Events.
func TestNotesAreLines(t *testing.T) {
	var sent noted
	w := &Warnings{Recorder: &sent}
	hostile := "\x1b[2J\nHealth well" + strings.Repeat("x", 1<<18)
	w.Add(SourceProblem, hostile)
	w.Warning(events.Damaged, hostile)
	w.OnService(types.NamespacedName{Namespace: "tenant", Name: "web"}, events.InvalidService, hostile)
	notes := slices.Clone(sent)
	for _, kept := range w.Last() {
		notes = append(notes, kept.Note)
	}
	for _, note := range notes {
		if !strings.Contains(note, `\u001b[2J Health well`) || strings.ContainsAny(note, "\x1b\n") || len(note) > 2*noteLimit {
			t.Errorf("a note of %d bytes: %.50q", len(note), note)
		}
	}
	if len(notes) != 5 {
		t.Errorf("%d notes", len(notes))
	}
}
