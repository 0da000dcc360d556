// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// known maps the kinds that are read to the API version they are read in.
var known = map[string]schema.GroupVersion{
	"Service":       corev1.SchemeGroupVersion,
	"EndpointSlice": discoveryv1.SchemeGroupVersion,
	"Node":          corev1.SchemeGroupVersion,
	"ServiceCIDR":   networkingv1.SchemeGroupVersion,
}

// lists maps the kinds of lists to the kind of their items; "" is any kind.
var lists = map[string]string{
	"List":              "",
	"ServiceList":       "Service",
	"EndpointSliceList": "EndpointSlice",
	"NodeList":          "Node",
	"ServiceCIDRList":   "ServiceCIDR",
}

// strict decodes JSON into the Go types of the known kinds and refuses unknown
// and duplicate fields.
var strict = func() *kjson.Serializer {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.Node{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{})
	scheme.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{})
	return kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, kjson.SerializerOptions{Strict: true})
}()

// use is what to do with an object of some kind.
type use int

const (
	take   use = iota // it is one of ours
	open              // it is a list: take its items
	ignore            // it is nothing to us
	refuse            // it is ours in a version that is not
)

// useOf says what to do with an object by its apiVersion and kind, and why it
// is refused.
func useOf(gv schema.GroupVersion, kind string) (use, []Fault) {
	want, ok := known[kind]
	if ok && gv == want {
		return take, nil
	}
	if !ok {
		item, isList := lists[kind]
		if !isList {
			return ignore, nil
		}
		want = corev1.SchemeGroupVersion
		if item != "" {
			want = known[item]
		}
		if gv == want {
			return open, nil
		}
	}
	// Other groups have kinds of the same name (serving.knative.dev has a
	// Service); the three groups that hold ours do not.
	if !slices.Contains([]string{corev1.GroupName, discoveryv1.GroupName, networkingv1.GroupName}, gv.Group) {
		return ignore, nil
	}
	return refuse, []Fault{{"apiVersion", fmt.Sprintf("Unsupported value: %q: kind %s is read in version %q", gv, kind, want)}}
}
