// A Kubernetes API server for tests: the real API machinery (storage in etcd, discovery, lists with
// selectors, strict decoding of the built-in types, custom resources with their schemas and CEL rules),
// without controllers, admission, users or the validation of built-in types that only kube-apiserver has.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/names"
)

var scheme = runtime.NewScheme()
var codecs = serializer.NewCodecFactory(scheme)

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func (s strategy) NamespaceScoped() bool                                          { return s.namespaced }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) Canonicalize(runtime.Object)    {}
func (strategy) AllowCreateOnUpdate() bool      { return false }
func (strategy) AllowUnconditionalUpdate() bool { return true }

// Pods are deleted as the kubelet knows it: marked first, gone when their time to end is over or nobody holds them any more.
type podStrategy struct{ strategy }

func (podStrategy) CheckGracefulDelete(_ context.Context, object runtime.Object, options *metav1.DeleteOptions) bool {
	period := int64(30)
	if given := object.(*corev1.Pod).Spec.TerminationGracePeriodSeconds; given != nil {
		period = *given
	}
	if options.GracePeriodSeconds != nil {
		period = *options.GracePeriodSeconds
	}
	if object.(*corev1.Pod).Spec.NodeName == "" {
		period = 0
	}
	options.GracePeriodSeconds = &period
	return true
}

type kind struct {
	group, plural, singular string
	object, list            func() runtime.Object
	namespaced              bool
}

// selectable makes events findable by their reason and by the object that they speak of.
func selectable(object runtime.Object) (labels.Set, fields.Set, error) {
	about, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	found := fields.Set{"metadata.name": about.GetName(), "metadata.namespace": about.GetNamespace()}
	if event, is := object.(*corev1.Event); is {
		found["reason"], found["involvedObject.name"] = event.Reason, event.InvolvedObject.Name
	}
	return labels.Set(about.GetLabels()), found, nil
}

func main() {
	etcd := flag.String("etcd", "http://127.0.0.1:2379", "where etcd listens")
	port := flag.Int("port", 6443, "port on 127.0.0.1")
	certs := flag.String("certs", ".", "folder for the self-signed certificate")
	dummy := flag.String("kubeconfig", "", "a kubeconfig that is never used")
	flag.Parse()
	if err := serve(*etcd, *port, *certs, *dummy); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(etcd string, port int, certs, dummy string) error {
	kinds := []kind{
		{"", "pods", "pod", func() runtime.Object { return &corev1.Pod{} }, func() runtime.Object { return &corev1.PodList{} }, true},
		{"", "services", "service", func() runtime.Object { return &corev1.Service{} }, func() runtime.Object { return &corev1.ServiceList{} }, true},
		{"", "events", "event", func() runtime.Object { return &corev1.Event{} }, func() runtime.Object { return &corev1.EventList{} }, true},
		{"", "nodes", "node", func() runtime.Object { return &corev1.Node{} }, func() runtime.Object { return &corev1.NodeList{} }, false},
		{"batch", "jobs", "job", func() runtime.Object { return &batchv1.Job{} }, func() runtime.Object { return &batchv1.JobList{} }, true},
	}
	core, batch := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "batch", Version: "v1"}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	metav1.AddToGroupVersion(scheme, core)
	for _, k := range kinds {
		internal := schema.GroupVersion{Group: k.group, Version: runtime.APIVersionInternal}
		scheme.AddKnownTypes(internal, k.object(), k.list())
	}
	events := func(label, value string) (string, string, error) { return label, value, nil }
	if err := scheme.AddFieldLabelConversionFunc(core.WithKind("Event"), events); err != nil {
		return err
	}
	if err := scheme.SetVersionPriority(core); err != nil {
		return err
	}
	if err := scheme.SetVersionPriority(batch); err != nil {
		return err
	}

	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Etcd.StorageConfig.Transport.ServerList = []string{etcd}
	r.SecureServing.BindAddress = []byte{127, 0, 0, 1}
	r.SecureServing.BindPort = port
	r.SecureServing.ServerCert.CertDirectory = certs
	r.Authentication, r.Authorization, r.Admission, r.EgressSelector = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.CoreAPI.CoreAPIKubeconfigPath = dummy
	if err := o.Complete(); err != nil {
		return err
	}
	config, err := o.Config()
	if err != nil {
		return err
	}
	config.GenericConfig.OpenAPIV3Config.IgnorePrefixes = []string{"/api/v1", "/apis/batch"}
	config.GenericConfig.SkipOpenAPIInstallation = true
	server, err := config.Complete().New(genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	storage := *r.Etcd
	storage.StorageConfig.Prefix = "/registry/builtin"
	storage.StorageConfig.Codec = codecs.LegacyCodec(core, batch)
	getter := storage.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: storage.StorageConfig}, nil)
	for _, gv := range []schema.GroupVersion{core, batch} {
		info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, scheme, metav1.ParameterCodec, codecs)
		resources := map[string]rest.Storage{}
		for _, k := range kinds {
			if k.group != gv.Group {
				continue
			}
			s := strategy{scheme, names.SimpleNameGenerator, k.namespaced}
			var deletion rest.RESTDeleteStrategy = s
			if k.plural == "pods" {
				deletion = podStrategy{s}
			}
			store := &registry.Store{
				NewFunc: k.object, NewListFunc: k.list,
				DefaultQualifiedResource:  schema.GroupResource{Group: k.group, Resource: k.plural},
				SingularQualifiedResource: schema.GroupResource{Group: k.group, Resource: k.singular},
				CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: deletion,
				TableConvertor: rest.NewDefaultTableConvertor(schema.GroupResource{Group: k.group, Resource: k.plural}),
			}
			if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: selectable}); err != nil {
				return err
			}
			resources[k.plural] = store
		}
		info.VersionedResourcesStorageMap["v1"] = resources
		if gv.Group == "" {
			err = server.GenericAPIServer.InstallLegacyAPIGroup("/api", &info)
		} else {
			err = server.GenericAPIServer.InstallAPIGroup(&info)
		}
		if err != nil {
			return err
		}
	}
	return server.GenericAPIServer.PrepareRun().RunWithContext(genericapiserver.SetupSignalContext())
}
