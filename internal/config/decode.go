// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/slipstream-proxy/slipstream/internal/yamldoc"
)

// Load reads a configuration file. See [Decode].
func Load(file string) (*Config, []Note, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	c, notes, err := Decode(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, notes, nil
}

// Decode reads a configuration, in YAML or JSON: at most one document each of
// kube-proxy's settings and of Slipstream's, in any order, and at least one of
// them. The configuration is complete but not validated. Notes are remarks about the
// file.
//
// As in kube-proxy, unknown and duplicate fields of kube-proxy's document are ignored,
// with a note. In Slipstream's document they are errors.
func Decode(data []byte) (*Config, []Note, error) {
	var (
		c     Config
		notes []Note
		errs  []error
		seen  = map[string]bool{}
	)
	for i, d := range yamldoc.Split(data) {
		kind, more, err := c.decode(d.Text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("document %d: %s", i+1, oneLine(err)))
		case seen[kind]:
			errs = append(errs, fmt.Errorf("document %d: there is more than one %s", i+1, kind))
		}
		seen[kind] = true
		notes = append(notes, more...)
	}
	if len(seen) == 0 {
		errs = append(errs, errors.New("it contains no configuration"))
	}
	if len(errs) > 0 {
		return nil, nil, utilerrors.NewAggregate(errs)
	}
	notes = append(notes, c.unused()...)
	c.Complete()
	setDefaults(&c.KubeProxy)
	setOwnDefaults(&c.Slipstream)
	return &c, notes, nil
}

// oneLine returns an error's text in one line. Errors about YAML have several lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(kubeproxy.AddToScheme(scheme))
	scheme.AddKnownTypes(GroupVersion, &SlipstreamConfiguration{})
	scheme.AddKnownTypes(formerVersion, &SlipstreamConfiguration{})
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}()

func (c *Config) decode(text []byte) (kind string, notes []Note, err error) {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return "", nil, err
	}
	switch {
	case meta.Kind == "":
		return "", nil, errors.New("kind: is missing")
	case meta.APIVersion == "":
		return "", nil, errors.New("apiVersion: is missing")
	}
	object, _, err := strict.Decode(text, nil, nil)
	unknown := runtime.IsStrictDecodingError(err)
	if runtime.IsNotRegisteredError(err) {
		err = fmt.Errorf("%s of %s is not supported: must be %s of %s or %s of %s", meta.Kind, meta.APIVersion,
			kubeProxyKind, kubeproxy.SchemeGroupVersion, SlipstreamKind, GroupVersion)
	}
	if err != nil && !unknown {
		return "", nil, err
	}
	switch o := object.(type) {
	case *kubeproxy.KubeProxyConfiguration:
		c.KubeProxy = *o
		if unknown {
			notes = append(notes, Note{Text: "Some of the configuration is ignored, as kube-proxy ignores it: " + oneLine(err)})
		}
		return kubeProxyKind, notes, nil
	case *SlipstreamConfiguration:
		c.Slipstream = *o
		if meta.APIVersion != GroupVersion.String() {
			notes = append(notes, Note{Field: "apiVersion", Text: meta.APIVersion + " is deprecated, and read as " + GroupVersion.String() + ", with the same fields"})
		}
		return SlipstreamKind, notes, err
	}
	return "", nil, fmt.Errorf("%s is not a configuration", meta.Kind)
}

// YAML returns the configuration as a file for [Decode]: both documents with all fields.
func (c *Config) YAML() ([]byte, error) {
	var out bytes.Buffer
	for i, document := range []any{&c.KubeProxy, &c.Slipstream} {
		data, err := yaml.Marshal(document)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(data)
	}
	return out.Bytes(), nil
}
