// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// table knows which file says what and works out what that means: the events
// since last asked, and which files contradict each other. It knows nothing of
// directories.
type table struct {
	files   map[string]map[key]Object // by file, then by object
	claims  map[key][]string          // the files that have an object, sorted: the first one counts
	current map[key]source.Object     // as delivered
	changed map[key]struct{}          // may differ from current
	// contested are the objects that more than one file has, with the files
	// that have been told so and the file that they lost to.
	contested map[key]map[string]string
}

func newTable() *table {
	return &table{
		files:     map[string]map[key]Object{},
		claims:    map[key][]string{},
		current:   map[key]source.Object{},
		changed:   map[key]struct{}{},
		contested: map[key]map[string]string{},
	}
}

// set replaces what a file says. With keep, what it said and does not say now
// stays.
func (t *table) set(file string, objects []Object, keep bool) {
	old := t.files[file]
	now := make(map[key]Object, len(objects))
	for _, o := range objects {
		k := keyOf(o.Object)
		before, ok := old[k]
		if ok && equality.Semantic.DeepEqual(before.Object, o.Object) {
			o.Object = before.Object // one copy is enough
		} else {
			t.changed[k] = struct{}{}
		}
		if !ok {
			t.claim(k, file)
		}
		delete(t.contested[k], file) // a new version is told again
		now[k] = o
	}
	for k, o := range old {
		if _, ok := now[k]; ok {
			continue
		}
		if keep {
			now[k] = o
		} else {
			t.unclaim(k, file)
			t.changed[k] = struct{}{}
		}
	}
	if len(now) == 0 {
		delete(t.files, file)
	} else {
		t.files[file] = now
	}
}

func (t *table) claim(k key, file string) {
	files := t.claims[k]
	at, _ := slices.BinarySearch(files, file)
	t.claims[k] = slices.Insert(files, at, file)
	if len(files) > 0 && t.contested[k] == nil {
		t.contested[k] = map[string]string{}
	}
}

func (t *table) unclaim(k key, file string) {
	files := t.claims[k]
	if at, ok := slices.BinarySearch(files, file); ok {
		files = slices.Delete(files, at, at+1)
	}
	t.claims[k] = files
	if len(files) == 0 {
		delete(t.claims, k)
	}
	if len(files) < 2 {
		delete(t.contested, k)
	} else {
		delete(t.contested[k], file)
	}
}

// events returns what has changed since it was last called: Nodes first, then
// ServiceCIDRs, Services and EndpointSlices, each by namespace and name. An object that has
// passed from one file to another is not deleted in between, and is not an
// event at all if both say the same.
func (t *table) events() []source.Event {
	var events []source.Event
	for k := range t.changed {
		was, existed := t.current[k]
		files := t.claims[k]
		if len(files) == 0 {
			if existed {
				delete(t.current, k)
				events = append(events, source.Event{Type: source.Delete, Object: was})
			}
			continue
		}
		is := t.files[files[0]][k].Object
		if existed && equality.Semantic.DeepEqual(was, is) {
			continue
		}
		t.current[k] = is
		events = append(events, source.Event{Type: source.Set, Object: is})
	}
	clear(t.changed)
	slices.SortFunc(events, func(a, b source.Event) int {
		return cmp.Or(
			cmp.Compare(rank(a.Object), rank(b.Object)),
			cmp.Compare(a.Object.GetNamespace(), b.Object.GetNamespace()),
			cmp.Compare(a.Object.GetName(), b.Object.GetName()))
	})
	return events
}

func rank(o source.Object) int {
	return slices.Index([]string{"Node", "ServiceCIDR", "Service", "EndpointSlice"}, source.Kind(o))
}

// conflicts returns an error for each object that a file has although another
// one counts, unless it has been returned before. Files for which unsettled is
// true are left for later: one of them may be about to go, as when a file is
// renamed.
func (t *table) conflicts(unsettled func(file string) bool) []*Error {
	var errs []*Error
	for k, told := range t.contested {
		files := t.claims[k]
		winner := files[0]
		if unsettled(winner) {
			continue
		}
		for _, file := range files[1:] {
			if told[file] == winner || unsettled(file) {
				continue
			}
			told[file] = winner
			o := t.files[file][k]
			errs = append(errs, &Error{
				File: file, Document: o.Document, Line: o.Line, Item: o.Item, Object: source.Name(o.Object),
				Err: fmt.Errorf("%s has it too and counts, being the first by name", winner),
			})
		}
	}
	slices.SortFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document),
			cmp.Compare(a.Item, b.Item), cmp.Compare(a.Object, b.Object))
	})
	return errs
}
