// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/yamldoc"
)

// Content is the content of one file.
type Content struct {
	Objects  []Object // that are valid, in the order of the file, with defaults applied; none occurs twice
	Errors   []*Error // of invalid objects and documents
	Warnings []string // one line each, with file, document and object
	Ignored  []string // objects of other kinds, e.g. "Deployment default/web"
}

// Object is an object and its position in a file.
type Object struct {
	source.Object
	Document int    // see Error.Document
	Item     string // see Error.Item
}

// Decode reads a file of manifests: YAML or JSON, any number of documents, each an
// object or a list of objects. Only the name of the file is used, in messages.
//
// An invalid object or document does not affect the others. Of two objects with the
// same kind, namespace and name the first one is used, and the second one is an error.
func Decode(file string, data []byte) *Content {
	var documents []yamldoc.Document
	for _, d := range yamldoc.Split(data) {
		documents = append(documents, jsonValues(d)...)
	}
	// Parsing 10,000 Services takes seconds of CPU time.
	parts := make([]document, len(documents))
	var workers errgroup.Group
	workers.SetLimit(runtime.GOMAXPROCS(0))
	for i, d := range documents {
		workers.Go(func() error {
			parts[i] = document{file: file, number: i + 1}
			parts[i].read(d)
			return nil
		})
	}
	_ = workers.Wait()

	c := &Content{}
	first := map[string]int{}
	for _, p := range parts {
		c.Errors = append(c.Errors, p.errors...)
		c.Ignored = append(c.Ignored, p.ignored...)
		for _, o := range p.objects {
			name := source.Name(o.Object)
			if d, ok := first[name]; ok {
				c.Errors = append(c.Errors, o.error(file, fmt.Errorf("document %d of this file already has it: the first one counts", d)))
				continue
			}
			first[name] = o.Document
			c.Objects = append(c.Objects, o)
			for _, w := range warnings(o.Object) {
				c.Warnings = append(c.Warnings, o.error(file, errors.New(w)).Error())
			}
		}
	}
	return c
}

func (o *Object) error(file string, err error) *Error {
	return &Error{File: file, Document: o.Document, Item: o.Item, Object: source.Name(o.Object), Errs: []error{err}}
}

// jsonValues splits a document that consists of JSON values that follow each other.
// Other documents are returned as they are.
func jsonValues(d yamldoc.Document) (all []yamldoc.Document) {
	if !isFlow(d.Text) {
		return []yamldoc.Document{d}
	}
	decoder := json.NewDecoder(bytes.NewReader(d.Text))
	counted, line := int64(0), d.Line
	for {
		start := decoder.InputOffset()
		line += bytes.Count(d.Text[counted:start], []byte("\n"))
		counted = start
		var value json.RawMessage
		switch err := decoder.Decode(&value); {
		case err == io.EOF:
			return all
		case err != nil: // a YAML flow mapping, a comment or a mistake
			for _, rest := range yamldoc.Split(d.Text[start:]) {
				all = append(all, yamldoc.Document{Text: rest.Text, Line: line})
			}
			return all
		}
		all = append(all, yamldoc.Document{Text: value, Line: line})
	}
}

// isFlow reports whether a document starts with a JSON object or YAML flow mapping.
func isFlow(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

type document struct {
	file    string
	number  int // see Error.Document
	objects []Object
	errors  []*Error
	ignored []string
}

func (d *document) fail(item, object string, errs ...error) {
	d.errors = append(d.errors, &Error{File: d.file, Document: d.number, Item: item, Object: object, Errs: errs})
}

func (d *document) read(text yamldoc.Document) {
	data, err := toJSON(text)
	switch {
	case err != nil:
		var h header
		_ = json.Unmarshal(data, &h) // for the name
		d.fail("", h.String(), err)
	case string(data) != "null":
		d.readObject(data, "", schema.GroupVersionKind{})
	}
}

// lineNumber matches the number that begins a line of an error of the parser.
var lineNumber = regexp.MustCompile(`(?m)^ *line \d+:`)

// toJSON converts a document of YAML or JSON. A duplicate key of YAML is an error,
// with which the JSON is returned that has the last of them.
func toJSON(d yamldoc.Document) ([]byte, error) {
	if json.Valid(d.Text) {
		return bytes.TrimSpace(d.Text), nil
	}
	if isFlow(d.Text) { // the conversion ignores what follows a flow mapping
		decoder := goyaml.NewDecoder(bytes.NewReader(d.Text))
		var ignored any
		if decoder.Decode(&ignored) == nil && decoder.Decode(&ignored) != io.EOF {
			return nil, fmt.Errorf("YAML: there is text after the end of the document that starts on line %d (is a line with --- missing?)", d.Line)
		}
	}
	data, err := yaml.YAMLToJSONStrict(d.Text)
	if err == nil {
		return data, nil
	}
	message := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:")
	// The parser counts lines from the start of the document.
	message = lineNumber.ReplaceAllStringFunc(message, func(s string) string {
		at := strings.LastIndexByte(s, ' ') + 1
		n, _ := strconv.Atoi(strings.TrimSuffix(s[at:], ":")) // digits
		return fmt.Sprintf("%s%d:", s[:at], n+d.Line-1)
	})
	data, _ = yaml.YAMLToJSON(d.Text)
	return data, errors.New("YAML: " + strings.TrimSpace(message))
}

// header is the part of an object that identifies it.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
}

// String returns kind, namespace and name for messages.
func (h *header) String() string {
	name := h.Metadata.Name
	switch ns := h.Metadata.Namespace; {
	case name == "":
	case ns != "":
		name = ns + "/" + name
	case h.Kind == "Service" || h.Kind == "EndpointSlice":
		name = metav1.NamespaceDefault + "/" + name
	}
	return plain.Line(h.Kind+" "+name, maxMessage)
}

// kinds are the kinds that are read.
var kinds = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Service"),
	corev1.SchemeGroupVersion.WithKind("Node"),
	corev1.SchemeGroupVersion.WithKind("Namespace"),
	discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"),
}

var anyList = corev1.SchemeGroupVersion.WithKind("List")

// strict decodes JSON into the Go types of the kinds and refuses unknown and
// duplicate fields.
var strict = func() *kjson.Serializer {
	scheme := kruntime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.Node{}, &corev1.Namespace{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{})
	scheme.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{})
	return kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Strict: true})
}()

// readObject reads an object, or the items of a list. The items of a typed list may
// leave out their kind, which is then the given one.
func (d *document) readObject(data []byte, item string, kind schema.GroupVersionKind) {
	var h header
	err := json.Unmarshal(data, &h)
	mismatch, is := errors.AsType[*json.UnmarshalTypeError](err)
	switch name := h.String(); {
	case data[0] != '{':
		d.fail(item, "", errors.New("is not an object: a manifest starts with apiVersion and kind"))
		return
	case is && (mismatch.Field == "kind" || mismatch.Field == "apiVersion"):
		d.fail(item, name, decodeErrors(err)...)
		return
	case h.Kind == "" && h.APIVersion == "" && !kind.Empty():
		h.APIVersion, h.Kind = kind.ToAPIVersionAndKind()
	case h.APIVersion == "":
		d.fail(item, name, field.Required(field.NewPath("apiVersion"), ""))
		return
	case h.Kind == "":
		d.fail(item, name, field.Required(field.NewPath("kind"), ""))
		return
	}
	kind = schema.FromAPIVersionAndKind(h.APIVersion, h.Kind)
	element := kind
	element.Kind = strings.TrimSuffix(kind.Kind, "List")
	switch {
	case slices.Contains(kinds, kind):
		o, errs := decodeObject(data, kind)
		if len(errs) > 0 {
			d.fail(item, h.String(), errs...)
			return
		}
		d.objects = append(d.objects, Object{o, d.number, item})
	case kind == anyList:
		d.readList(data, item, h.String(), schema.GroupVersionKind{})
	case slices.Contains(kinds, element):
		d.readList(data, item, h.String(), element)
	default:
		if err := wrongVersion(h.APIVersion, element); err != nil {
			d.fail(item, h.String(), err)
			return
		}
		d.ignored = append(d.ignored, h.String())
	}
}

// wrongVersion returns an error for another version or group of a kind that is read.
// Groups other than those of the kinds may have kinds of the same name.
func wrongVersion(apiVersion string, kind schema.GroupVersionKind) error {
	if !slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Group == kind.Group }) {
		return nil
	}
	for _, k := range append(kinds, corev1.SchemeGroupVersion.WithKind("")) { // the last one is List
		if k.Kind == kind.Kind {
			return field.NotSupported(field.NewPath("apiVersion"), apiVersion, []string{k.GroupVersion().String()})
		}
	}
	return nil
}

// readList reads the items of a list. The list itself is decoded strictly: items of a
// misspelled field would otherwise be missed without an error.
func (d *document) readList(data []byte, item, name string, kind schema.GroupVersionKind) {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	errs, err := strictjson.UnmarshalStrict(data, &list)
	if err != nil {
		errs = decodeErrors(err)
	}
	if len(errs) > 0 {
		d.fail(item, name, errs...)
		return
	}
	if item != "" {
		item += "."
	}
	for i, raw := range list.Items {
		d.readObject(raw, fmt.Sprintf("%sitems[%d]", item, i), kind)
	}
}

// decodeObject decodes an object, applies its defaults and validates it.
func decodeObject(data []byte, kind schema.GroupVersionKind) (source.Object, []error) {
	decoded, _, err := strict.Decode(data, &kind, nil)
	if err != nil {
		return nil, decodeErrors(err)
	}
	o := decoded.(source.Object) // the serializer knows no others
	o.GetObjectKind().SetGroupVersionKind(kind)
	setDefaults(o)
	faults := Validate(o)
	o.SetManagedFields(nil) // may be most of an object
	var errs []error
	for _, f := range faults {
		errs = append(errs, f)
	}
	return o, errs
}

func decodeErrors(err error) []error {
	if s, ok := kruntime.AsStrictDecodingError(err); ok {
		return s.Errors()
	}
	if mismatch, is := errors.AsType[*json.UnmarshalTypeError](err); is {
		must := mismatch.Type.String()
		if mismatch.Type.Kind() == reflect.Slice {
			must = "a list"
		}
		err = fmt.Errorf("%s: is of type %s, must be %s", mismatch.Field, mismatch.Value, must)
	}
	return []error{err}
}

// setDefaults sets the defaults of an API server that package desired does not
// assume itself. It allocates nothing: no cluster IPs, no node ports.
func setDefaults(o source.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		o.Namespace = cmp.Or(o.Namespace, corev1.NamespaceDefault)
		spec := &o.Spec
		spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
		for i := range spec.Ports {
			spec.Ports[i].Protocol = cmp.Or(spec.Ports[i].Protocol, corev1.ProtocolTCP)
		}
		setFirstAndAll(&spec.ClusterIP, &spec.ClusterIPs)
	case *discoveryv1.EndpointSlice:
		o.Namespace = cmp.Or(o.Namespace, corev1.NamespaceDefault)
	case *corev1.Node:
		setFirstAndAll(&o.Spec.PodCIDR, &o.Spec.PodCIDRs)
	}
}

// setFirstAndAll completes a pair of fields of which the older one holds the first
// value of the newer one, e.g. clusterIP and clusterIPs.
func setFirstAndAll(first *string, all *[]string) {
	switch {
	case *first == "" && len(*all) > 0:
		*first = (*all)[0]
	case *first != "" && len(*all) == 0:
		*all = []string{*first}
	}
}
