// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/validate"
)

// Content is what one file of manifests says.
type Content struct {
	// Objects are the objects that are valid, in the order of the file, with
	// defaults applied. None occurs twice.
	Objects []Object
	// Errors are what is wrong with the others and with the file itself.
	Errors []*Error
	// Warnings are one line each, with file, document and object.
	Warnings []string
	// Ignored names the objects of other kinds, e.g. "Deployment default/web".
	Ignored []string
}

// Object is an object and its place in a file.
type Object struct {
	source.Object
	Document int    // see Error.Document
	Line     int    // see Error.Line
	Item     string // see Error.Item
}

// Decode reads the Services, EndpointSlices, Nodes and ServiceCIDRs of a file of
// manifests: YAML or JSON, any number of documents, each an object or a list of
// objects.
// Only the name of the file is used, in messages.
//
// What is wrong with one object or document does not affect the others. Of two
// objects with the same kind, namespace and name the first is taken and the
// other an error.
func Decode(file string, data []byte) *Content {
	c := &Content{}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark
	if !utf8.Valid(data) {
		c.Errors = append(c.Errors, &Error{File: file, Err: errors.New("is not UTF-8 text")})
		return c
	}

	first := map[key]int{}
	count := 0 // of the documents so far
	for _, found := range readChunks(split(data)) {
		for i := range found.findings {
			f := &found.findings[i]
			doc := count + f.document
			if e := f.err; e != nil {
				e.File, e.Document = file, doc
				c.Errors = append(c.Errors, e)
				continue
			}
			if f.ignored != "" {
				c.Ignored = append(c.Ignored, f.ignored)
				continue
			}
			where := Error{File: file, Document: doc, Line: f.line, Item: f.item, Object: source.Name(f.object)}
			k := keyOf(f.object)
			if d, ok := first[k]; ok {
				where.Err = fmt.Errorf("document %d of this file already has it: the first one counts", d)
				c.Errors = append(c.Errors, &where)
				continue
			}
			first[k] = doc
			c.Objects = append(c.Objects, Object{f.object, doc, f.line, f.item})
			for _, w := range validate.Warnings(f.object) {
				c.Warnings = append(c.Warnings, where.Error()+": "+w)
			}
		}
		count += found.documents
	}
	return c
}

// key identifies an object.
type key struct {
	kind, namespace, name string
}

func keyOf(o source.Object) key {
	return key{source.Kind(o), o.GetNamespace(), o.GetName()}
}

// finding is one thing found in a chunk: an object, an error, or an object of
// a kind that is ignored.
type finding struct {
	document int // of the chunk, from 1
	line     int
	item     string
	object   source.Object
	err      *Error
	ignored  string
}

// findings is all that was found in one chunk.
type findings struct {
	documents int
	findings  []finding
}

// readChunks reads the chunks with all the CPUs there are: a file with 10,000
// Services takes seconds of CPU time to parse.
func readChunks(chunks []chunk) []findings {
	all := make([]findings, len(chunks))
	workers := min(runtime.GOMAXPROCS(0), (len(chunks)+15)/16)
	if workers <= 1 {
		for i, c := range chunks {
			all[i] = readChunk(c)
		}
		return all
	}
	var (
		next atomic.Int64
		wg   sync.WaitGroup
	)
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(chunks) {
					return
				}
				all[i] = readChunk(chunks[i])
			}
		})
	}
	wg.Wait()
	return all
}

func readChunk(c chunk) findings {
	var f findings
	for _, d := range c.documents() {
		f.documents++
		r := reader{document: f.documents, line: d.line}
		if d.err != nil {
			e := &Error{Line: d.line, Err: d.err}
			e.Object, _ = identify(d.json)
			r.findings = []finding{{document: f.documents, err: e}}
		} else {
			r.read(d.json, "", nil, 0)
		}
		f.findings = append(f.findings, r.findings...)
	}
	return f
}

// reader collects the findings of one document.
type reader struct {
	document, line int
	findings       []finding
}

func (r *reader) fail(item, object string, faults []Fault) {
	e := &Error{Line: r.line, Item: item, Object: object}
	e.setFaults(faults)
	r.findings = append(r.findings, finding{document: r.document, err: e})
}

// read reads an object, or the items of a list. The item of a typed list may
// leave out its kind: outer is then the kind that the list says.
func (r *reader) read(data []byte, item string, outer *schema.GroupVersionKind, depth int) {
	name, t := identify(data)
	if t.fault != nil {
		r.fail(item, name, []Fault{*t.fault})
		return
	}
	if outer != nil && t.APIVersion == "" && t.Kind == "" {
		t.APIVersion, t.Kind = outer.GroupVersion().String(), outer.Kind
		name = t.name()
	}
	var missing []Fault
	if t.APIVersion == "" {
		missing = append(missing, Fault{"apiVersion", "Required value"})
	}
	if t.Kind == "" {
		missing = append(missing, Fault{"kind", "Required value"})
	}
	if missing != nil {
		r.fail(item, name, missing)
		return
	}
	gv, err := schema.ParseGroupVersion(t.APIVersion)
	if err != nil {
		r.fail(item, name, []Fault{{"apiVersion", fmt.Sprintf("Invalid value: %q: must be VERSION or GROUP/VERSION", t.APIVersion)}})
		return
	}
	if outer != nil && (gv != outer.GroupVersion() || t.Kind != outer.Kind) {
		r.fail(item, name, []Fault{{"kind", fmt.Sprintf("Invalid value: %q: the list is one of %s", t.APIVersion+" "+t.Kind, outer.Kind)}})
		return
	}
	use, faults := useOf(gv, t.Kind)
	switch use {
	case ignore:
		r.findings = append(r.findings, finding{document: r.document, ignored: name})
	case refuse:
		r.fail(item, name, faults)
	case open:
		r.readList(data, item, name, t.Kind, depth)
	case take:
		gvk := gv.WithKind(t.Kind)
		o, faults := decodeObject(data, &gvk)
		if len(faults) > 0 {
			r.fail(item, name, faults)
			return
		}
		r.findings = append(r.findings, finding{document: r.document, line: r.line, item: item, object: o})
	}
}

// typeAndName is what identifies an object.
type typeAndName struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	fault *Fault
}

// name returns the object's name for messages.
func (t *typeAndName) name() string {
	name := t.Metadata.Name
	switch ns := t.Metadata.Namespace; {
	case name == "":
		return t.Kind
	case ns != "":
		name = ns + "/" + name
	case t.Kind == "Service" || t.Kind == "EndpointSlice":
		name = "default/" + name
	}
	if t.Kind == "" {
		return name
	}
	return t.Kind + " " + name
}

// identify reads what identifies an object. A fault is set when apiVersion and
// kind cannot be read; metadata that cannot is left to the decoder, which
// knows better what to say.
func identify(data []byte) (string, *typeAndName) {
	t := &typeAndName{}
	if len(data) == 0 {
		return "", t
	}
	if data[0] != '{' {
		t.fault = &Fault{"", "is not an object: a manifest starts with apiVersion and kind"}
		return "", t
	}
	err := json.Unmarshal(data, t)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) && mismatch.Field != "apiVersion" && mismatch.Field != "kind" {
		err = nil
	}
	if err != nil {
		f := decodeFaults(err)[0]
		t.fault = &f
	}
	return oneLine(t.name()), t
}

// decodeObject decodes one object of a known kind, applies its defaults and
// validates it.
func decodeObject(data []byte, gvk *schema.GroupVersionKind) (source.Object, []Fault) {
	decoded, _, err := strict.Decode(data, gvk, nil)
	if err != nil {
		return nil, decodeFaults(err)
	}
	o, ok := decoded.(source.Object)
	if !ok {
		return nil, []Fault{{"kind", fmt.Sprintf("is not an object but a %T", decoded)}}
	}
	o.GetObjectKind().SetGroupVersionKind(*gvk) // the items of a typed list may not say
	setDefaults(o)
	faults := validate.Object(o)
	faults = append(faults, validate.Allocated(o)...)
	// Who owns which field is of no use here and can be most of an object.
	o.SetManagedFields(nil)
	if len(faults) == 0 {
		return o, nil
	}
	list := make([]Fault, len(faults))
	for i, f := range faults {
		list[i] = Fault{f.Field, f.ErrorBody()}
	}
	return nil, list
}

var strictError = regexp.MustCompile(`^(unknown|duplicate) field "(.*)"$`)

// decodeFaults turns an error of the strict decoder into faults.
func decodeFaults(err error) []Fault {
	if s, ok := kruntime.AsStrictDecodingError(err); ok {
		var faults []Fault
		for _, err := range s.Errors() {
			if m := strictError.FindStringSubmatch(err.Error()); m != nil {
				faults = append(faults, Fault{m[2], m[1] + " field"})
			} else {
				faults = append(faults, Fault{"", err.Error()})
			}
		}
		return faults
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return []Fault{{mismatch.Field, fmt.Sprintf("is a %s, must be a %s", found(mismatch.Value), wanted(mismatch.Type))}}
	}
	return []Fault{{"", err.Error()}}
}

// found names what encoding/json says it found, e.g. "array" or "number 1e9".
func found(value string) string {
	switch value {
	case "bool":
		return "boolean"
	case "array":
		return "list"
	}
	return value
}

// wanted names a Go type in the words of JSON.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Map, reflect.Struct:
		return "object"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Int32:
		return "whole number of 32 bits"
	}
	return "whole number"
}
