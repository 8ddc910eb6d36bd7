trl dpo --model_name_or_path a/b --per_device_train_batch_size 1 --beta 0.1 --output_dir o
